function y = onnx_sized(x, sizes)
% The elements of X in an array of these sizes, also if there are fewer than two.
y = reshape(x, [sizes(:)', 1, 1]);
end
