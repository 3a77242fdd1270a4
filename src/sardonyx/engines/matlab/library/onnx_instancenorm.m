function y = onnx_instancenorm(x, rank, scale, shift, epsilon)
% Normalization of every channel of every example by its own statistics.
dims = 1:rank - 2;
average = onnx_reduce(x, rank, dims, 'mean', true);
variance = onnx_reduce((x - average) .^ 2, rank, dims, 'mean', true);
per = [ones(1, rank - 2), numel(scale), 1];
y = (x - average) ./ sqrt(variance + epsilon) .* reshape(scale, per) + reshape(shift, per);
end
