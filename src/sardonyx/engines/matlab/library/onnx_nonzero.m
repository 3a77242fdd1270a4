function y = onnx_nonzero(x, rank)
% The positions of elements that are not zero, one column for each axis in ONNX's order.
k = find(x(:)) - 1;
s = onnx_size(x, rank);
y = zeros(numel(k), max(rank, 1));
for d = 1:rank
    y(:, rank - d + 1) = mod(floor(k / prod(s(1:d - 1))), s(d));
end
end
