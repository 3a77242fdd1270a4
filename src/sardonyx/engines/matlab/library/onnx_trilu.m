function y = onnx_trilu(x, rank, k, upper)
% The triangle of each matrix above, or below, its diagonal K.
s = onnx_size(x, rank);
column = onnx_sized(0:s(1) - 1, s(1));
row = onnx_sized(0:s(2) - 1, [1, s(2)]);
if upper
    inside = column - row >= k;
else
    inside = column - row <= k;
end
y = onnx_fill(repmat(inside, [1, 1, s(3:end)]), x, cast(0, class(x)));
end
