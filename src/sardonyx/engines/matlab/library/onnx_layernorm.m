function [y, average, inverse] = onnx_layernorm(x, rank, dims, scale, shift, epsilon)
% Normalization of every row over its last axes in ONNX's order.
average = onnx_reduce(x, rank, dims, 'mean', true);
variance = onnx_reduce((x - average) .^ 2, rank, dims, 'mean', true);
inverse = 1 ./ sqrt(variance + epsilon);
y = (x - average) .* inverse .* scale;
if ~isempty(shift)
    y = y + shift;
end
end
