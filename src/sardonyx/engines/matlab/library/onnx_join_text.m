function y = onnx_join_text(a, b)
% Texts one after the other; singleton dimensions are repeated.
rank = max(ndims(a), ndims(b));
s = max(onnx_size(a, rank), onnx_size(b, rank));
y = cellfun(@(p, q) [p, q], onnx_repeat(a, s), onnx_repeat(b, s), 'UniformOutput', false);
end
