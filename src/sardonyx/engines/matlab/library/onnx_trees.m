function y = onnx_trees(x, roots, feature, mode, yes, no, leaf, split, missing, weights, kind)
% What the leaves of trees that rows reach weigh together; nodes, features and leaves from 0.
n = size(x, 2);
at = repmat(roots(:), 1, n) + 1;
offset = repmat((0:n - 1) * size(x, 1), numel(roots), 1);
while any(mode(at(:)) >= 0)
    value = x(onnx_like(feature(at), at) + offset + 1);
    border = onnx_like(split(at), at);
    how = onnx_like(mode(at), at);
    goes = (how == 0 & value <= border) | (how == 1 & value < border) ...
        | (how == 2 & value >= border) | (how == 3 & value > border) ...
        | (how == 4 & value == border) | (how == 5 & value ~= border) ...
        | (isnan(value) & onnx_like(missing(at), at));
    next = onnx_like(no(at), at);
    other = onnx_like(yes(at), at);
    next(goes) = other(goes);
    at = next + 1;
end
places = onnx_like(leaf(at), at) + 1;
y = weights(:, places(1, :));
for t = 2:numel(roots)
    part = weights(:, places(t, :));
    switch kind
        case 'min'
            y = min(y, part);
        case 'max'
            y = max(y, part);
        otherwise
            y = y + part;
    end
end
if strcmp(kind, 'average')
    y = y / numel(roots);
end
y(isinf(y) & (strcmp(kind, 'min') | strcmp(kind, 'max'))) = 0;
end
