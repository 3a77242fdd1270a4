function [y, rank] = onnx_squeeze(x, rank)
% X without its dimensions of size one, and how many dimensions are left.
s = onnx_size(x, rank);
s = s(s ~= 1);
y = onnx_sized(x, s);
rank = numel(s);
end
