function y = onnx_permute(x, order)
% X with its dimensions in another order.
y = permute(x, [order, numel(order) + 1, numel(order) + 2]);
end
