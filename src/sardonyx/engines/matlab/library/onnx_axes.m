function onnx_axes(count, expected)
% An error if a tensor has another number of axes than the model says.
if count ~= expected
    error('onnx:axes', 'a tensor has %d axes where the model says %d', count, expected);
end
end
