function y = onnx_onehot(indices, irank, dim, depth, values)
% VALUES(2) at INDICES (from 0) along a new dimension of size DEPTH, else VALUES(1).
t = onnx_size(indices, irank);
depth = double(depth(1));
k = double(indices);
k(k < 0) = k(k < 0) + depth;
k = onnx_sized(k, [t(1:dim - 1), 1, t(dim:end)]);
on = onnx_sized(0:depth - 1, [ones(1, dim - 1), depth]) == k;
y = onnx_fill(on, values(2), values(1));
y = onnx_sized(y, [t(1:dim - 1), depth, t(dim:end)]);
end
