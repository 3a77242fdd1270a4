function y = onnx_drop(x, rank, dims)
% X without dimensions of size one.
s = onnx_size(x, rank);
s(dims) = [];
y = onnx_sized(x, s);
end
