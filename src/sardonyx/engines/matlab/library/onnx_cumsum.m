function y = onnx_cumsum(x, dim, exclusive, reverse)
% Sums of all elements up to each one along a dimension.
if reverse
    x = flip(x, dim);
end
y = cumsum(x, dim);
if exclusive
    y = y - x;
end
if reverse
    y = flip(y, dim);
end
end
