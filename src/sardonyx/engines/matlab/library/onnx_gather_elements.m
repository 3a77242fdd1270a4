function y = onnx_gather_elements(x, rank, indices, dim)
% One element of X for each index (from 0) along a dimension.
y = onnx_sized(x(onnx_places(onnx_size(x, rank), onnx_size(indices, rank), indices, dim)), ...
    onnx_size(indices, rank));
end
