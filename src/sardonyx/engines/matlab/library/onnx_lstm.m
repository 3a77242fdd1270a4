function [y, last, cell_state] = onnx_lstm(x, w, r, b, h0, c0, peepholes, reversed, kinds)
% Long short-term memory; REVERSED says for each direction whether it runs backwards.
s = onnx_size(x, 3);
n = size(r, 1);
directions = numel(reversed);
y = zeros([n, s(2), directions, s(3)], class(x));
last = zeros([n, s(2), directions], class(x));
cell_state = last;
for d = 1:directions
    [h, c, bias] = onnx_start(h0, c0, b, d, n, s(2), 4, class(x));
    p = zeros(n, 3, class(x));
    if ~isempty(peepholes)
        p = reshape(peepholes(:, d), n, 3);
    end
    steps = 1:s(3);
    if reversed(d)
        steps = fliplr(steps);
    end
    for t = steps
        g = w(:, :, d)' * x(:, :, t) + r(:, :, d)' * h + bias;
        i = onnx_activation(g(1:n, :) + p(:, 1) .* c, kinds{d, 1});
        f = onnx_activation(g(2 * n + 1:3 * n, :) + p(:, 3) .* c, kinds{d, 1});
        c = f .* c + i .* onnx_activation(g(3 * n + 1:4 * n, :), kinds{d, 2});
        o = onnx_activation(g(n + 1:2 * n, :) + p(:, 2) .* c, kinds{d, 1});
        h = o .* onnx_activation(c, kinds{d, 3});
        y(:, :, d, t) = h;
    end
    last(:, :, d) = h;
    cell_state(:, :, d) = c;
end
end
