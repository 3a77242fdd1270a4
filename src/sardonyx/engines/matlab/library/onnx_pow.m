function y = onnx_pow(a, b)
% A power of real numbers; NaN where it is not real.
y = a .^ b;
if ~isreal(y)
    complex_parts = imag(y) ~= 0;
    y = real(y);
    y(complex_parts) = NaN;
end
end
