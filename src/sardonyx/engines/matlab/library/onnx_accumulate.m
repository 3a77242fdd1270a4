function y = onnx_accumulate(x, rank, dim, kind, exclusive, reverse)
% The 'sum' or 'prod' of all elements up to each one along a dimension, without itself if EXCLUSIVE.
if reverse
    x = flip(x, dim);
end
if exclusive && size(x, dim) > 0
    subs = repmat({':'}, 1, max(rank, 2));
    subs{dim} = 1:size(x, dim) - 1;
    s = onnx_size(x, max(rank, 2));
    s(dim) = 1;
    first = repmat(cast(strcmp(kind, 'prod'), class(x)), s);
    x = cat(dim, first, x(subs{:}));
end
if strcmp(kind, 'sum')
    y = cumsum(x, dim);
else
    y = cumprod(x, dim);
end
if reverse
    y = flip(y, dim);
end
end
