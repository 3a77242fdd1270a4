function y = onnx_gather(x, rank, indices, irank, dim)
% The elements of X at INDICES (from 0) along a dimension.
k = onnx_index(indices, size(x, dim));
s = onnx_size(x, rank);
subs = repmat({':'}, 1, max(rank, 2));
subs{dim} = k(:);
y = x(subs{:});
y = onnx_sized(y, [s(1:dim - 1), onnx_size(indices, irank), s(dim + 1:end)]);
end
