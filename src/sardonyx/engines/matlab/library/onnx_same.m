function y = onnx_same(a, b)
% Whether texts are equal; singleton dimensions are repeated.
rank = max(ndims(a), ndims(b));
s = max(onnx_size(a, rank), onnx_size(b, rank));
y = strcmp(onnx_repeat(a, s), onnx_repeat(b, s));
end
