function y = onnx_softmax(x, dim)
% Exponentials that sum up to one along a dimension.
e = exp(x - max(x, [], dim));
y = e ./ sum(e, dim);
end
