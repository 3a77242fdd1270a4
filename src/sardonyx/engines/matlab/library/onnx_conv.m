function y = onnx_conv(x, w, b, strides, before, after, dilations, group)
% A convolution over any number of dimensions: one product for each position in the kernel.
d = numel(strides);
sw = onnx_size(w, d + 2);
x = onnx_pad(x, d + 2, [before, 0, 0], [after, 0, 0], 'constant', 0);
s = onnx_size(x, d + 2);
kernel = sw(1:d);
out = floor((s(1:d) - dilations .* (kernel - 1) - 1) ./ strides) + 1;
inside = sw(d + 1);
outside = sw(d + 2) / group;
w = reshape(w, prod(kernel), inside, outside, group);
y = zeros(prod(out), outside, group, s(d + 2), class(x));
for k = 1:prod(kernel)
    piece = onnx_window(x, d, kernel, k, strides, dilations, out);
    piece = reshape(piece, prod(out), inside, group, s(d + 2));
    for g = 1:group
        part = reshape(w(k, :, :, g), inside, outside);
        for n = 1:s(d + 2)
            y(:, :, g, n) = y(:, :, g, n) + reshape(piece(:, :, g, n), prod(out), inside) * part;
        end
    end
end
y = reshape(y, [out, outside * group, s(d + 2)]);
if ~isempty(b)
    y = y + reshape(b, [ones(1, d), numel(b), 1]);
end
end
