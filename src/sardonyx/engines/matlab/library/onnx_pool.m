function y = onnx_pool(x, kind, kernel, strides, before, after, dilations, ceil_mode, include)
% The largest element ('max'), or the mean ('mean'), of every window.
d = numel(kernel);
s = onnx_size(x, d + 2);
span = dilations .* (kernel - 1) + 1;
out = (s(1:d) + before + after - span) ./ strides;
if ceil_mode
    out = ceil(out) + 1;
    late = (out - 1) .* strides >= s(1:d) + before;
    out(late) = out(late) - 1;
else
    out = floor(out) + 1;
end
more = max((out - 1) .* strides + span - s(1:d) - before, after);
if strcmp(kind, 'max')
    x = onnx_pad(x, d + 2, [before, 0, 0], [more, 0, 0], 'constant', -Inf);
    y = onnx_window(x, d, kernel, 1, strides, dilations, out);
    for k = 2:prod(kernel)
        y = onnx_max(y, onnx_window(x, d, kernel, k, strides, dilations, out));
    end
    return
end
ones_inside = ones([s(1:d), 1, 1], class(x));
fill = 0;
if include
    ones_inside = onnx_pad(ones_inside, d + 2, [before, 0, 0], [after, 0, 0], 'constant', 1);
    ones_inside = onnx_pad(ones_inside, d + 2, zeros(1, d + 2), [more - after, 0, 0], 'constant', 0);
else
    ones_inside = onnx_pad(ones_inside, d + 2, [before, 0, 0], [more, 0, 0], 'constant', 0);
end
x = onnx_pad(x, d + 2, [before, 0, 0], [more, 0, 0], 'constant', fill);
y = onnx_window(x, d, kernel, 1, strides, dilations, out);
count = onnx_window(ones_inside, d, kernel, 1, strides, dilations, out);
for k = 2:prod(kernel)
    y = y + onnx_window(x, d, kernel, k, strides, dilations, out);
    count = count + onnx_window(ones_inside, d, kernel, k, strides, dilations, out);
end
y = y ./ count;
end
