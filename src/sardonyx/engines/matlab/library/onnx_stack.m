function y = onnx_stack(parts, dim, sizes, kind)
% Elements that a loop gave, side by side along a dimension; SIZES are those of one, NaN if unknown.
if ~isempty(parts)
    y = cat(dim, parts{:});
    return
end
if any(isnan(sizes))
    error('onnx:loop', 'a loop took no step, and the sizes of what it gives are not known');
end
y = zeros([sizes(1:dim - 1), 0, sizes(dim:end), 1]);
if strcmp(kind, 'logical')
    y = logical(y);
else
    y = cast(y, kind);
end
end
