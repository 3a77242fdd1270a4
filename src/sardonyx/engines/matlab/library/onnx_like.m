function y = onnx_like(y, x)
% Elements in the sizes of X: an index of one row or column gives those of what it indexes.
y = reshape(y, size(x));
end
