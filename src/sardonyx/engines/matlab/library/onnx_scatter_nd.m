function y = onnx_scatter_nd(x, rank, indices, irank, updates, kind)
% X with slices put in where the last axis of INDICES (in ONNX's order) names them.
places = onnx_tuples(onnx_size(x, rank), indices, irank, 0);
y = onnx_put(x, places(:), updates(:), kind);
end
