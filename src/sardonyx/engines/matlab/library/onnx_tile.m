function y = onnx_tile(x, repeats)
% X repeated; the counts are in ONNX's order.
y = repmat(x, [fliplr(double(repeats(:)')), 1, 1]);
end
