function y = onnx_space_to_depth(x, block)
% Blocks of pixels moved into channels.
s = onnx_size(x, 4);
y = reshape(x, [block, s(1) / block, block, s(2) / block, s(3), s(4)]);
y = permute(y, [2, 4, 5, 1, 3, 6]);
y = onnx_sized(y, [s(1) / block, s(2) / block, s(3) * block ^ 2, s(4)]);
end
