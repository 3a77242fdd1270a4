function y = onnx_resize(x, rank, scales, sizes, mode, coordinates, nearest, a, exclude)
% X with other sizes, interpolated one dimension after the other; SCALES in MATLAB's order.
y = x;
for d = 1:rank
    n = size(x, d);
    m = sizes(d);
    if m == n && scales(d) == 1
        continue
    end
    k = 0:m - 1;
    switch coordinates
        case 'half_pixel'
            at = (k + 0.5) / scales(d) - 0.5;
        case 'pytorch_half_pixel'
            at = (k + 0.5) / scales(d) - 0.5;
            if m <= 1
                at = zeros(size(k));
            end
        case 'asymmetric'
            at = k / scales(d);
        otherwise
            at = k * (n - 1) / max(scales(d) * n - 1, 1);
    end
    y = onnx_along(y, rank, d, onnx_taps(at, n, mode, nearest, a, exclude));
end
end
