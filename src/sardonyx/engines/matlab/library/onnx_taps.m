function w = onnx_taps(at, n, mode, nearest, a, exclude)
% The matrix of weights (outputs by inputs) of an interpolation at the positions AT.
w = zeros(numel(at), n);
for i = 1:numel(at)
    switch mode
        case 'nearest'
            switch nearest
                case 'round_prefer_floor'
                    k = ceil(at(i) - 0.5);
                case 'round_prefer_ceil'
                    k = floor(at(i) + 0.5);
                case 'floor'
                    k = floor(at(i));
                otherwise
                    k = ceil(at(i));
            end
            taps = k;
            parts = 1;
        case 'linear'
            k = floor(at(i));
            t = at(i) - k;
            taps = [k, k + 1];
            parts = [1 - t, t];
        otherwise
            k = floor(at(i));
            t = at(i) - k;
            taps = k - 1:k + 2;
            u = abs([t + 1, t, 1 - t, 2 - t]);
            near = (a + 2) * u .^ 3 - (a + 3) * u .^ 2 + 1;
            far = a * u .^ 3 - 5 * a * u .^ 2 + 8 * a * u - 4 * a;
            parts = near .* (u <= 1) + far .* (u > 1);
            if exclude
                parts(taps < 0 | taps >= n) = 0;
                parts = parts / sum(parts);
            end
    end
    taps = min(max(taps, 0), n - 1) + 1;
    for j = 1:numel(taps)
        w(i, taps(j)) = w(i, taps(j)) + parts(j);
    end
end
end
