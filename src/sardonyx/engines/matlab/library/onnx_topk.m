function [y, k] = onnx_topk(x, rank, dim, count, largest)
% The largest or smallest elements along a dimension, sorted, and their positions from 0.
if largest
    [y, k] = sort(x, dim, 'descend');
else
    [y, k] = sort(x, dim, 'ascend');
end
subs = repmat({':'}, 1, max(rank, 2));
subs{dim} = 1:double(count(1));
y = y(subs{:});
k = k(subs{:}) - 1;
end
