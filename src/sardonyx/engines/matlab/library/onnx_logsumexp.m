function y = onnx_logsumexp(x, rank, dims, keep)
% The logarithm of the sum of exponentials over dimensions.
peak = onnx_reduce(x, rank, dims, 'max', true);
peak(isinf(peak)) = 0;
y = log(onnx_reduce(exp(x - peak), rank, dims, 'sum', true)) + peak;
if ~keep
    y = onnx_drop(y, rank, dims);
end
end
