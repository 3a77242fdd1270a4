function [h, c, bias] = onnx_start(h0, c0, b, d, n, batch, gates, kind)
% The state of a recurrent layer before its first step, and the sum of its two biases.
h = zeros(n, batch, kind);
c = h;
bias = zeros(gates * n, 1, kind);
if ~isempty(h0)
    h = reshape(h0(:, :, d), n, batch);
end
if ~isempty(c0)
    c = reshape(c0(:, :, d), n, batch);
end
if ~isempty(b)
    bias = b(1:gates * n, d) + b(gates * n + 1:end, d);
end
end
