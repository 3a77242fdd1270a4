function places = onnx_places(s, t, indices, dim)
% Positions in an array of sizes S of the elements that indices of sizes T name along DIM.
places = zeros([t, 1, 1]) + 1;
step = 1;
for d = 1:numel(s)
    if d == dim
        along = onnx_sized(onnx_index(indices, s(d)), t) - 1;
    else
        along = onnx_sized(0:t(d) - 1, [ones(1, d - 1), t(d)]);
    end
    places = places + along * step;
    step = step * s(d);
end
end
