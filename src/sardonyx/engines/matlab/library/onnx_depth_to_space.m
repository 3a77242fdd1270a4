function y = onnx_depth_to_space(x, block, mode)
% Channels moved into blocks of pixels.
s = onnx_size(x, 4);
c = s(3) / block ^ 2;
if strcmp(mode, 'DCR')
    y = permute(reshape(x, [s(1), s(2), c, block, block, s(4)]), [4, 1, 5, 2, 3, 6]);
else
    y = permute(reshape(x, [s(1), s(2), block, block, c, s(4)]), [3, 1, 4, 2, 5, 6]);
end
y = onnx_sized(y, [s(1) * block, s(2) * block, c, s(4)]);
end
