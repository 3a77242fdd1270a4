function [places, inner] = onnx_tuples(s, indices, irank, batch)
% Positions in an array of sizes S of slices that tuples of indices name, and the sizes of one.
t = onnx_size(indices, irank);
depth = t(1);
rank = numel(s);
outer = rank - batch - depth;
inner = s(1:outer);
tuples = reshape(double(indices), depth, []);
count = size(tuples, 2);
starts = zeros(1, count);
for i = 1:depth
    d = rank - batch - i + 1;
    k = onnx_index(tuples(i, :), s(d)) - 1;
    starts = starts + k * prod(s(1:d - 1));
end
if batch > 0
    per = count / prod(t(end - batch + 1:end));
    starts = starts + floor((0:count - 1) / per) * prod(s(1:rank - batch));
end
places = bsxfun(@plus, (1:prod(inner))', starts);
end
