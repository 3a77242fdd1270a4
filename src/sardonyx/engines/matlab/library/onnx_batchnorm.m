function y = onnx_batchnorm(x, rank, scale, shift, average, variance, epsilon)
% Normalization of every channel by fixed statistics.
per = [ones(1, max(rank - 2, 0)), numel(scale), 1];
factor = scale ./ sqrt(variance + epsilon);
y = (x - reshape(average, per)) .* reshape(factor, per) + reshape(shift, per);
end
