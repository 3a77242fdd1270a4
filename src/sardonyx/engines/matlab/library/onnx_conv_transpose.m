function y = onnx_conv_transpose(x, w, b, strides, before, after, dilations, group, extra)
% A transposed convolution: every input adds its multiple of the kernel to the output.
d = numel(strides);
sw = onnx_size(w, d + 2);
s = onnx_size(x, d + 2);
kernel = sw(1:d);
outside = sw(d + 1);
inside = sw(d + 2) / group;
full = (s(1:d) - 1) .* strides + dilations .* (kernel - 1) + 1 + extra;
y = zeros([full, outside * group, s(d + 2)], class(x));
w = reshape(w, prod(kernel), outside, inside, group);
xs = reshape(x, prod(s(1:d)), inside, group, s(d + 2));
for k = 1:prod(kernel)
    piece = zeros(prod(s(1:d)), outside, group, s(d + 2), class(x));
    for g = 1:group
        part = reshape(w(k, :, :, g), outside, inside)';
        for n = 1:s(d + 2)
            piece(:, :, g, n) = reshape(xs(:, :, g, n), prod(s(1:d)), inside) * part;
        end
    end
    subs = repmat({':'}, 1, d + 2);
    rest = k - 1;
    for i = 1:d
        offset = mod(rest, kernel(i)) * dilations(i);
        rest = floor(rest / kernel(i));
        subs{i} = offset + (0:s(i) - 1) * strides(i) + 1;
    end
    y(subs{:}) = y(subs{:}) + reshape(piece, [s(1:d), outside * group, s(d + 2)]);
end
y = onnx_pad(y, d + 2, [-before, 0, 0], [-after, 0, 0], 'constant', 0);
if ~isempty(b)
    y = y + reshape(b, [ones(1, d), numel(b), 1]);
end
end
