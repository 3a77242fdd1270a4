function k = onnx_offsets(s, dim)
% For each element of an array of sizes S, its position with dimension DIM at its start, from 1.
k = reshape(0:prod(s) - 1, [s, 1, 1]);
step = prod(s(1:dim - 1));
k = k - mod(floor(k / step), s(dim)) * step + 1;
end
