function y = onnx_reshape(x, rank, shape, allowzero)
% X with a shape in ONNX's order: 0 copies a size, -1 stands for what is left.
shape = double(shape(:)');
if ~allowzero
    old = fliplr(onnx_size(x, rank));
    zero = find(shape == 0);
    shape(zero) = old(zero);
end
rest = find(shape == -1);
if ~isempty(rest)
    others = prod(shape(shape ~= -1));
    shape(rest) = numel(x) / max(others, 1);
end
y = onnx_sized(x, fliplr(shape));
end
