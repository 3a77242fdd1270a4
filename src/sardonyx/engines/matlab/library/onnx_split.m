function varargout = onnx_split(x, rank, dim, sizes)
% X in pieces of these sizes along a dimension.
subs = repmat({':'}, 1, max(rank, 2));
first = 0;
for i = 1:numel(sizes)
    subs{dim} = first + (1:double(sizes(i)));
    varargout{i} = x(subs{:});
    first = first + double(sizes(i));
end
end
