function y = onnx_expand(x, rank, shape)
% X repeated to a shape in ONNX's order, by the rules of broadcasting.
s = fliplr(double(shape(:)'));
n = max(rank, numel(s));
old = onnx_size(x, n);
s(numel(s) + 1:n) = 1;
new = max(s, old);
new(s == 0 | old == 0) = 0;
y = onnx_sized(onnx_repeat(x, [new, 1, 1]), new);
end
