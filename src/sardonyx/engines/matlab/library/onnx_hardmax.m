function y = onnx_hardmax(x, rank, dim)
% One at the first of the largest elements along a dimension, else zero.
k = onnx_arg(x, rank, dim, 'max', true, false);
n = size(x, dim);
y = cast(onnx_sized(0:n - 1, [ones(1, dim - 1), n]) == k, class(x));
end
