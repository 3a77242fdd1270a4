function [y, last] = onnx_rnn(x, w, r, b, h0, reversed, kinds)
% A simple recurrent layer; REVERSED says for each direction whether it runs backwards.
s = onnx_size(x, 3);
n = size(r, 1);
directions = numel(reversed);
y = zeros([n, s(2), directions, s(3)], class(x));
last = zeros([n, s(2), directions], class(x));
for d = 1:directions
    [h, ~, bias] = onnx_start(h0, [], b, d, n, s(2), 1, class(x));
    steps = 1:s(3);
    if reversed(d)
        steps = fliplr(steps);
    end
    for t = steps
        h = onnx_activation(w(:, :, d)' * x(:, :, t) + r(:, :, d)' * h + bias, kinds{d, 1});
        y(:, :, d, t) = h;
    end
    last(:, :, d) = h;
end
end
