function y = onnx_fill(condition, a, b)
% A where CONDITION holds, else B; singleton dimensions are repeated.
rank = max([ndims(condition), ndims(a), ndims(b)]);
sizes = [onnx_size(condition, rank); onnx_size(a, rank); onnx_size(b, rank)];
s = max(sizes, [], 1);
s(any(sizes == 0, 1)) = 0;
condition = onnx_repeat(condition, s);
y = onnx_repeat(b, s);
a = onnx_repeat(a, s);
y(condition) = a(condition);
end
