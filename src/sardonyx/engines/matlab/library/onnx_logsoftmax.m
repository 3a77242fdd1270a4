function y = onnx_logsoftmax(x, dim)
% The logarithm of a softmax along a dimension.
x = x - max(x, [], dim);
y = x - log(sum(exp(x), dim));
end
