function y = onnx_gather_nd(x, rank, indices, irank, batch)
% The slices of X that the last axis of INDICES (in ONNX's order) names.
[places, inner] = onnx_tuples(onnx_size(x, rank), indices, irank, batch);
t = onnx_size(indices, irank);
y = onnx_sized(x(places), [inner, t(2:end)]);
end
