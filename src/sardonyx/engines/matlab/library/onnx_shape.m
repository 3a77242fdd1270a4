function y = onnx_shape(x, rank, first, last)
% The sizes of X from FIRST to LAST in ONNX's order, as a column.
s = fliplr(onnx_size(x, rank));
y = s(first + 1:last);
y = y(:);
end
