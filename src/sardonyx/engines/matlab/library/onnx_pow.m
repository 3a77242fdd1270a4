function y = onnx_pow(a, b)
% A power of real numbers; NaN where it is not real.
y = abs(a) .^ b;
a = a .* ones(size(b), class(b));
b = b + zeros(size(a), class(a));
odd = mod(b, 2) == 1;
negative = a < 0 | 1 ./ a == -Inf;
y(negative & odd) = -y(negative & odd);
y(a < 0 & isfinite(a) & isfinite(b) & fix(b) ~= b) = NaN;
end
