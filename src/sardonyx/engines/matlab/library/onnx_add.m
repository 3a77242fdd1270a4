function y = onnx_add(x, rank, dims, total)
% X with dimensions of size one at DIMS of TOTAL ones.
s = ones(1, total);
s(setdiff(1:total, dims)) = onnx_size(x, rank);
y = onnx_sized(x, s);
end
