function k = onnx_index(indices, count)
% Positions from 1 of indices from 0, of which negative ones count from the end.
k = double(indices);
k(k < 0) = k(k < 0) + count;
if any(k(:) < 0 | k(:) >= count)
    error('onnx:index', 'an index is out of range');
end
k = k + 1;
end
