function y = onnx_at(x, rank, dim, k)
% The elements of X at position K, from 1, along a dimension, which is dropped.
subs = repmat({':'}, 1, max(rank, 2));
subs{dim} = k;
y = onnx_drop(x(subs{:}), rank, dim);
end
