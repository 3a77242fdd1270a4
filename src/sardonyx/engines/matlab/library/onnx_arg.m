function y = onnx_arg(x, rank, dim, kind, keep, last)
% The position of the largest ('max') or smallest ('min') element along a dimension, from 0.
if last
    x = flip(x, dim);
end
if strcmp(kind, 'max')
    [~, k] = max(x, [], dim);
else
    [~, k] = min(x, [], dim);
end
y = k - 1;
if last
    y = size(x, dim) - 1 - y;
end
if ~keep
    y = onnx_drop(y, rank, dim);
end
end
