function [y, last] = onnx_gru(x, w, r, b, h0, reversed, kinds, linear_before_reset)
% Gated recurrent units; REVERSED says for each direction whether it runs backwards.
s = onnx_size(x, 3);
n = size(r, 1);
directions = numel(reversed);
y = zeros([n, s(2), directions, s(3)], class(x));
last = zeros([n, s(2), directions], class(x));
for d = 1:directions
    h = onnx_start(h0, [], [], d, n, s(2), 3, class(x));
    bw = zeros(3 * n, 1, class(x));
    br = bw;
    if ~isempty(b)
        bw = b(1:3 * n, d);
        br = b(3 * n + 1:end, d);
    end
    steps = 1:s(3);
    if reversed(d)
        steps = fliplr(steps);
    end
    for t = steps
        gx = w(:, :, d)' * x(:, :, t) + bw;
        rh = r(:, :, d)';
        gh = rh(1:2 * n, :) * h + br(1:2 * n);
        z = onnx_activation(gx(1:n, :) + gh(1:n, :), kinds{d, 1});
        reset = onnx_activation(gx(n + 1:2 * n, :) + gh(n + 1:2 * n, :), kinds{d, 1});
        candidate = rh(2 * n + 1:3 * n, :);
        if linear_before_reset
            inner = reset .* (candidate * h + br(2 * n + 1:3 * n));
        else
            inner = candidate * (reset .* h) + br(2 * n + 1:3 * n);
        end
        new = onnx_activation(gx(2 * n + 1:3 * n, :) + inner, kinds{d, 2});
        h = (1 - z) .* new + z .* h;
        y(:, :, d, t) = h;
    end
    last(:, :, d) = h;
end
end
