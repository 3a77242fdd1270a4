function y = onnx_scatter_elements(x, rank, indices, updates, dim, kind)
% X with UPDATES put in, one for each index (from 0) along a dimension.
y = x;
k = onnx_places(onnx_size(x, rank), onnx_size(indices, rank), indices, dim);
y = onnx_put(y, k(:), updates(:), kind);
end
