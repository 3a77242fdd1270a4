function piece = onnx_window(x, d, kernel, k, strides, dilations, out)
% What position K of a kernel sees of X, for every output.
subs = repmat({':'}, 1, d + 2);
k = k - 1;
for i = 1:d
    offset = mod(k, kernel(i)) * dilations(i);
    k = floor(k / kernel(i));
    subs{i} = offset + (0:out(i) - 1) * strides(i) + 1;
end
piece = x(subs{:});
end
